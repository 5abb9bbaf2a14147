"""Word lists and small generators that fill the slots of the prompt templates."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from random import Random

Filler = Callable[[Random], str]


def _words(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")]


WORDS: dict[str, list[str]] = {
    "noun": _words(
        "acorn, anchor, apron, arrow, badge, balcony, bamboo, barrel, beacon, bell, blossom, boulder, bracket, "
        "brick, broom, bucket, button, cabin, cable, canoe, canvas, carpet, castle, cedar, chalk, chimney, clock, "
        "cloud, comet, copper, cotton, cradle, crayon, curtain, dagger, daisy, dolphin, donkey, drum, eagle, "
        "envelope, falcon, feather, fence, ferry, fiddle, flute, fountain, fox, funnel, garlic, gate, glacier, "
        "goblet, guitar, hammer, harbor, helmet, honey, hook, igloo, inkwell, ivory, jacket, jewel, jungle, "
        "kettle, kite, lantern, lemon, lever, lizard, locket, magnet, maple, marble, meadow, mitten, mosaic, "
        "napkin, needle, nest, oar, olive, orchard, otter, oven, paddle, parrot, pebble, pepper, piano, pigeon, "
        "pillow, pine, plum, pond, prism, puzzle, quill, quilt, rabbit, raft, ribbon, saddle, saucer, scarf, "
        "shovel, silver, sled, spoon, stable, statue, sugar, tablet, teapot, temple, thimble, tiger, torch, "
        "tulip, tunnel, turtle, umbrella, valley, vase, velvet, violin, wagon, walnut, whistle, willow, window, "
        "yarn, zebra, zipper"
    ),
    "fruit": _words(
        "apple, apricot, banana, blackberry, cherry, coconut, date, fig, grape, guava, kiwi, lime, lychee, mango, "
        "melon, nectarine, orange, papaya, peach, pear, persimmon, pineapple, plum, pomegranate, quince, "
        "raspberry, strawberry"
    ),
    "color": _words(
        "red, orange, amber, yellow, green, teal, cyan, blue, indigo, violet, magenta, pink, brown, gray, black, "
        "white, beige, crimson, turquoise, olive, navy, maroon, gold, silver"
    ),
    "first": _words(
        "Aaron, Abigail, Ahmed, Aisha, Andre, Anika, Beatrice, Boris, Camila, Cedric, Clara, Dmitri, Elena, "
        "Elias, Emily, Fatima, Felix, Fiona, Gabriel, Greta, Hannah, Hassan, Hugo, Ines, Isaac, Jasmine, Jonas, "
        "Julia, Kenji, Kiara, Lars, Leila, Liam, Lucia, Marcus, Mei, Miguel, Nadia, Nathan, Noor, Olga, Oliver, "
        "Paula, Priya, Rafael, Rohan, Sara, Simon, Sofia, Stefan, Tariq, Thea, Tomas, Valeria, Victor, Wei, "
        "Yusuf, Zoe"
    ),
    "last": _words(
        "Abbott, Alvarez, Bauer, Becker, Carter, Chen, Costa, Diaz, Dubois, Ekström, Fischer, Foster, Garcia, "
        "Gupta, Haddad, Hansen, Ibrahim, Ito, Jensen, Kaplan, Khan, Kim, Kovac, Larsen, Lopez, Marino, Meyer, "
        "Moreau, Nakamura, Novak, Okafor, Olsen, Park, Patel, Petrov, Quinn, Reyes, Rossi, Sato, Schmidt, Silva, "
        "Singh, Tanaka, Turner, Vargas, Vogel, Walker, Weber, Yilmaz, Zhang"
    ),
    "city": _words(
        "Accra, Amsterdam, Athens, Austin, Bangkok, Barcelona, Bergen, Berlin, Bogota, Boston, Bristol, Brussels, "
        "Budapest, Cairo, Chicago, Copenhagen, Dakar, Dallas, Denver, Dublin, Florence, Geneva, Hamburg, Hanoi, "
        "Helsinki, Istanbul, Kyoto, Lagos, Lima, Lisbon, London, Lyon, Madrid, Melbourne, Milan, Montreal, "
        "Munich, Nairobi, Osaka, Oslo, Paris, Porto, Prague, Quito, Riga, Rome, Seattle, Seoul, Sydney, Toronto, "
        "Vienna, Warsaw, Zurich"
    ),
    "country": _words(
        "Argentina, Australia, Austria, Belgium, Brazil, Canada, Chile, Colombia, Denmark, Egypt, Estonia, "
        "Finland, France, Germany, Ghana, Greece, Hungary, Iceland, India, Indonesia, Ireland, Italy, Japan, "
        "Kenya, Latvia, Mexico, Morocco, Nepal, Norway, Peru, Poland, Portugal, Spain, Sweden, Thailand, Turkey, "
        "Vietnam"
    ),
    "job": _words(
        "accountant, architect, baker, biologist, carpenter, chemist, data analyst, dentist, editor, electrician, "
        "florist, geologist, journalist, lawyer, librarian, mechanic, nurse, pharmacist, photographer, pilot, "
        "plumber, product manager, sales manager, software engineer, surgeon, teacher, translator, veterinarian"
    ),
    "company": _words(
        "Acorn Labs, Alder Foods, Arctic Freight, Beacon Software, Birch & Co, Bluefin Travel, Brightway Energy, "
        "Cedar Health, Copperfield Bank, Deltaworks, Evergreen Paper, Falcon Robotics, Fernhill Dairy, Granite "
        "Media, Harbor Lights, Ironwood Tools, Juniper Design, Kestrel Air, Lakeside Print, Maple Street Books, "
        "Northwind Trading, Orchid Hotels, Pinecrest Motors, Quartz Analytics, Riverstone Mills, Silverline "
        "Telecom, Tidewater Shipping, Umbra Security, Vista Optics, Willow Farm"
    ),
    "product": _words(
        "backpack, bicycle pump, blender, bookshelf, camera lens, coffee grinder, desk lamp, drill, earphones, "
        "electric kettle, fan, garden hose, gloves, hiking boots, keyboard, monitor, mouse pad, notebook, office "
        "chair, printer, rain jacket, router, screwdriver set, sleeping bag, speaker, stapler, sunglasses, tent, "
        "thermos, toaster, toothbrush, tripod, USB cable, vacuum cleaner, wall clock, water bottle, webcam, yoga "
        "mat"
    ),
    "things": _words(
        "books, cities, movies, employees, products, customers, countries, planets, songs, students, orders, "
        "animals, sensors, recipes, cars, flights, hotels, courses, teams, players, servers, devices, invoices, "
        "tasks, events, plants, museums, rivers, mountains, restaurants, languages, tickets, bank accounts, "
        "messages, robots, games, podcasts, paintings, phones, laptops, trains, warehouses, suppliers, meetings, "
        "contacts, volcanoes, elements"
    ),
    "thing": _words(
        "book, city, movie, employee, product, customer, country, planet, song, student, order, animal, sensor, "
        "recipe, car, flight, hotel, course, team, player, server, device, invoice, task, event, plant, museum, "
        "river, mountain, restaurant, ticket, bank account, message, robot, game, podcast, painting, phone, "
        "laptop, warehouse, supplier, meeting, contact, user profile, shopping cart, weather report, blog post, "
        "job offer, train trip"
    ),
    "field": _words(
        "id, name, title, category, price, quantity, status, date, email, phone, city, country, rating, "
        "description, weight, height, color, size, year, author, owner, url, enabled, priority, score, age, type, "
        "unit, value, tags, created_at, updated_at, address, language, duration, capacity, department, salary, "
        "version, level, count, total"
    ),
    "task": _words(
        "checks whether a number is prime, reverses a string, computes the greatest common divisor of two "
        "numbers, sorts a list with bubble sort, sorts a list with insertion sort, does a binary search in a "
        "sorted list, counts the vowels in a string, merges two sorted lists, flattens a nested list, checks if a "
        "string is a palindrome, computes the average of a list, finds the largest number in a list, removes "
        "duplicates from a list, converts Celsius to Fahrenheit, converts miles to kilometers, sums the digits of "
        "a number, transposes a matrix, counts the words in a text, returns the first n square numbers, raises a "
        "number to a power, finds the second largest number, reads a CSV file and returns its rows, writes a "
        "dictionary to a file, checks an email address, multiplies two matrices, rotates a list by k places, "
        "counts how often each word occurs, checks if two strings are anagrams, converts a number to binary, "
        "converts a Roman numeral to an integer, returns the n-th Fibonacci number, computes a factorial, finds "
        "the longest word in a sentence, capitalizes every word, splits a list into chunks of size n, returns the "
        "common items of two lists, swaps the keys and values of a dictionary, generates a random password, "
        "computes the distance between two points, checks if a year is a leap year, computes compound interest, "
        "finds all divisors of a number, returns the median of a list, filters even numbers out of a list, groups "
        "a list of words by their first letter, removes vowels from a string, counts the lines in a file, "
        "computes the area of a triangle, parses a date string, retries a function up to three times, measures "
        "how long a function takes, validates a phone number, finds the index of an item in a list, zips two "
        "lists into a dictionary, pads a string on the left, checks balanced parentheses, computes the sum of a "
        "nested list"
    ),
    "class": _words(
        "Account, Address, Album, Book, Calendar, Car, Cart, Circle, Clock, Counter, Customer, Deck, Elevator, "
        "Employee, Event, Fraction, Game, Garage, Graph, Inventory, Invoice, Library, LinkedList, Logger, Matrix, "
        "Message, Movie, Node, Order, Parser, Person, Player, Playlist, Point, Polygon, Queue, Rectangle, Recipe, "
        "Robot, Room, Sensor, Server, ShoppingList, Stack, Student, Task, Team, Temperature, Thermostat, Ticket, "
        "Timer, TodoList, Tree, Vector, Vehicle, Wallet, Warehouse, Zoo"
    ),
    "method": _words(
        "add, remove, find, list, count, update, reset, clear, save, load, print, start, stop, move, copy, merge, "
        "sort, total, average, resize, describe, validate, compare, open, close"
    ),
    "service": _words(
        "nginx, redis, postgres, mysql, mongodb, rabbitmq, grafana, prometheus, elasticsearch, memcached, a "
        "Python web app, a Node.js API, a worker, a frontend, a reverse proxy, an admin panel"
    ),
    "app": _words(
        "billing, blog, chat, checkout, crawler, dashboard, forum, gateway, inventory, mailer, media, metrics, "
        "notifier, orders, payments, photos, portal, queue, reports, scheduler, search, shop, storage, tracker, "
        "uploader, wiki"
    ),
    "setting": _words(
        "host, port, debug, log_level, timeout, retries, max_connections, cache_size, theme, language, timezone, "
        "data_dir, backup, interval, user, password, database, threads, ssl, output, format, buffer_size, token, "
        "region"
    ),
    "topic": _words(
        "bees, black holes, bread, bridges, budgeting, chess, climate, clouds, coffee, compost, coral reefs, "
        "cycling, deserts, dreams, earthquakes, electricity, forests, friendship, gardening, glaciers, gravity, "
        "habits, honey, hurricanes, kindness, lighthouses, maps, meditation, migration of birds, money, music, "
        "ocean currents, painting, photosynthesis, public transport, rain, recycling, rivers, robots, salt, "
        "satellites, sleep, solar panels, stress, tea, teamwork, tides, time, trains, vaccines, volcanoes, "
        "walking, whales, wind power, writing"
    ),
    "tech": _words(
        "a compiler, a database index, a hash table, a linked list, an API, a web browser, a firewall, a cache, "
        "an operating system, a neural network, a router, a binary tree, a transaction, encryption, recursion, "
        "version control, a container, a load balancer, a thread, a pixel, a sensor, a battery, a microchip, a "
        "search engine"
    ),
    "skill": _words(
        "cooking, drawing, learning a language, managing time, public speaking, saving money, sleeping better, "
        "staying focused, studying, swimming, taking photos, training a dog, traveling light, waking up early, "
        "writing clearly, growing tomatoes, playing the guitar, running, job interviews, working from home, "
        "packing a suitcase"
    ),
    "hero": _words(
        "a girl who builds a robot, an old sailor, a lost dog, a shy librarian, two brothers, a clockmaker, a "
        "brave mouse, a lonely lighthouse keeper, a young painter, a baker with a secret, a talking cat, a tired "
        "postman, a boy who collects stones, a curious astronaut, a small dragon, a gardener, a violin teacher, a "
        "traveling cook"
    ),
    "day": _words("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday"),
    "month": _words("January, February, March, April, May, June, July, August, September, October, November, December"),
    "department": _words(
        "sales, marketing, finance, support, research, logistics, design, legal, operations, security"
    ),
    "level": _words("INFO, WARNING, ERROR, DEBUG"),
    "project": _words(
        "Aurora, Basalt, Cobalt, Dune, Ember, Fjord, Glacier, Horizon, Iris, Jade, Kepler, Lotus, Meridian, Nova, "
        "Onyx, Phoenix, Quasar, Ridge, Saturn, Tundra, Umbra, Vega, Zephyr"
    ),
    "verb": _words(
        "carried, cleaned, found, painted, borrowed, measured, hid, dropped, repaired, sold, washed, lifted, "
        "counted, packed, opened, drew, moved, bought, lost, polished"
    ),
    "var": _words(
        "count, index, item, value, node, row, total, score, entry, name, price, key, line, word, size, left"
    ),
    "sqltable": _words("users, orders, products, payments, employees, books, flights, tickets, logs, students, sales"),
    "separator": _words("a comma, a space, a semicolon, a dash, a slash, a vertical bar"),
    "order": _words("alphabetical order, reverse order, reverse alphabetical order, order of length"),
    "shop": _words(
        "bakery, bookshop, pharmacy, hardware store, flower shop, pet shop, bike shop, tea house, toy store"
    ),
}

_FIELD_SETS = [
    "name, country, population and area",
    "id, name, price, quantity and category",
    "title, director, year and rating",
    "id, name, department and salary",
    "name, diameter, moons and distance",
    "title, artist, album and duration",
    "id, customer, total and status",
    "name, species, age and weight",
    "id, type, value and unit",
    "name, ingredients, minutes and servings",
    "make, model, year and mileage",
    "number, origin, destination and departure",
    "name, stars, rooms and price_per_night",
    "host, port, protocol and enabled",
    "id, title, due_date, priority and done",
    "from, to, subject and body",
    "code, title, credits and teacher",
    "name, position, goals and assists",
    "url, method, status and time_ms",
    "username, email, role and active",
]


def number(low: int, high: int) -> Filler:
    """A filler for a whole number in [low, high]."""
    return lambda rng: str(rng.randint(low, high))


def money(rng: Random) -> str:
    """A price with cents."""
    return f"{rng.randint(2, 950)}.{rng.choice(['00', '50', '99', '25', '49', '95'])}"


def date(rng: Random) -> str:
    """An ISO date."""
    return str(datetime.date(2019, 1, 1) + datetime.timedelta(days=rng.randrange(3000)))


def time_of_day(rng: Random) -> str:
    """A time of day."""
    return f"{rng.randint(6, 21):02d}:{rng.choice(['00', '15', '30', '45'])}"


def clock(rng: Random) -> str:
    """A time of day with seconds."""
    return f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}:{rng.randint(0, 59):02d}"


def email(rng: Random) -> str:
    """An email address."""
    host = rng.choice(["example.com", "mail.example", "example.org", "post.example"])
    return f"{rng.choice(WORDS['first']).lower()}.{rng.choice(WORDS['last'][:9]).lower()}@{host}"


def phone(rng: Random) -> str:
    """A phone number."""
    return f"{rng.randint(200, 999)}-{rng.randint(100, 999)}-{rng.randint(1000, 9999)}"


def several(name: str, low: int, high: int, separator: str = ", ") -> Filler:
    """A filler for a list of distinct words of one list."""
    return lambda rng: separator.join(rng.sample(WORDS[name], rng.randint(low, high)))


def numbers(low: int, high: int, few: int, many: int) -> Filler:
    """A filler for a comma-separated list of random numbers."""
    return lambda rng: ", ".join(str(rng.randint(low, high)) for _ in range(rng.randint(few, many)))


def count_range(rng: Random) -> str:
    """Two ends of a counting range, with or without a step."""
    start, step = rng.choice([0, 1, 1, rng.randint(2, 400)]), rng.choice([1, 1, 1, 2, 3, 4, 5, 10, 20, 25, 50, 100])
    text = f"from {start} to {start + step * rng.randint(15, 50)}"
    return text if step == 1 else f"{text} in steps of {step}"


def count_down(rng: Random) -> str:
    """Two ends of a counting range downwards, with or without a step."""
    end, step = rng.choice([0, 1, rng.randint(2, 200)]), rng.choice([1, 1, 2, 5, 10])
    text = f"from {end + step * rng.randint(15, 40)} to {end}"
    return text if step == 1 else f"{text} in steps of {step}"


def sequence_start(rng: Random) -> str:
    """The first terms of an arithmetic or geometric sequence."""
    first, step = rng.randint(1, 60), rng.randint(2, 25)
    if rng.random() < 0.25:
        return ", ".join(str(rng.choice([1, 2, 3, 5]) * 2**i) for i in range(4))
    return ", ".join(str(first + step * i) for i in range(rng.randint(4, 6)))


def person(rng: Random) -> str:
    """Two or three sentences about a person, full of extractable fields."""
    name = f"{rng.choice(WORDS['first'])} {rng.choice(WORDS['last'])}"
    parts = [
        f"{name} is a {rng.randint(21, 68)}-year-old {rng.choice(WORDS['job'])} from {rng.choice(WORDS['city'])}.",
        f"You can write to {email(rng)} or call {phone(rng)}.",
        f"The current employer is {rng.choice(WORDS['company'])}, in the {rng.choice(WORDS['department'])} department.",
    ]
    return " ".join(parts[: rng.randint(2, 3)])


def purchase(rng: Random) -> str:
    """A sentence or two about an order."""
    first, second = rng.sample(WORDS["product"], 2)
    return (
        f"Order {rng.randint(1000, 99999)} was placed on {date(rng)} by {rng.choice(WORDS['first'])} "
        f"{rng.choice(WORDS['last'])} from {rng.choice(WORDS['city'])}. It contains {rng.randint(1, 9)} x {first} at "
        f"${money(rng)} and {rng.randint(1, 9)} x {second} at ${money(rng)}. Shipping costs ${money(rng)}."
    )


def gathering(rng: Random) -> str:
    """A sentence or two about an event."""
    return (
        f"The {rng.choice(WORDS['topic'])} workshop takes place on {date(rng)} at {time_of_day(rng)} in "
        f"{rng.choice(WORDS['city'])}. It is led by {rng.choice(WORDS['first'])} {rng.choice(WORDS['last'])}, has "
        f"{rng.randint(8, 120)} seats and costs ${money(rng)}."
    )


def sentence(rng: Random) -> str:
    """A plain sentence of one or two clauses."""
    a, b, c = rng.sample(WORDS["noun"], 3)
    text = f"{rng.choice(WORDS['first'])} {rng.choice(WORDS['verb'])} the {rng.choice(WORDS['color'])} {a} near the {b}"
    return f"{text} and {rng.choice(WORDS['verb'])} the {c}." if rng.random() < 0.6 else f"{text}."


def paragraph(rng: Random) -> str:
    """Three or four plain sentences."""
    return " ".join(sentence(rng) for _ in range(rng.randint(2, 4)))


def key_values(rng: Random) -> str:
    """Lines of ``key: value`` pairs."""
    fields = rng.sample(["city", "color", "day", "job", "month", "product", "project", "topic"], rng.randint(3, 6))
    return "\n".join(f"{field}: {rng.choice(WORDS[field])}" for field in fields)


def snippet(rng: Random) -> str:
    """A short piece of Python code."""
    a, b = rng.sample(WORDS["var"], 2)
    n, m = rng.randint(2, 90), rng.randint(1, 9)
    return rng.choice(
        [
            f"for {a} in range({n}):\n    if {a} % {m + 1} == 0:\n        print({a}, {b})\n        {b} += {m}",
            f"def update_{a}({a}, {b}={m}):\n    {a} = {a} * {n} + {b}\n    return {a}",
            f"{b} = [{m}, {n}, {n + m}]\nfor {a} in {b}:\n    print({a} * {m})\nprint('done')",
            f"class {rng.choice(WORDS['class'])}:\n    def __init__(self, {a}, {b}):\n        self.{a} = {a}\n"
            f"        self.{b} = {b}\n\n    def get_{a}(self):\n        return self.{a}",
            f"while {a} < {n}:\n    {a} += {m}\n    {b}.append({a})\nprint(len({b}))",
            f"with open('{a}.txt') as f:\n    for line in f:\n        {b} = line.strip().split(',')\n"
            f"        print({b}[{m}])",
        ]
    )


def json_snippet(rng: Random) -> str:
    """A small JSON object."""
    identifier, name, city = rng.randint(1, 999), rng.choice(WORDS["first"]), rng.choice(WORDS["city"])
    field, value = rng.choice(WORDS["field"][26:]), rng.randint(1, 99)
    tags = f'["{rng.choice(WORDS["noun"])}", "{rng.choice(WORDS["color"])}"]'
    return f'{{"id": {identifier}, "name": "{name}", "city": "{city}", "{field}": {value}, "tags": {tags}}}'


def one(name: str) -> Filler:
    """A filler for one word of a list."""
    return lambda rng: rng.choice(WORDS[name])


FILLERS: dict[str, Filler] = {
    **{name: one(name) for name in WORDS},
    "range": count_range,
    "down": count_down,
    "start": sequence_start,
    "person": person,
    "purchase": purchase,
    "gathering": gathering,
    "sentence": sentence,
    "paragraph": paragraph,
    "pairs": key_values,
    "snippet": snippet,
    "jsonsnippet": json_snippet,
    "email": email,
    "money": money,
    "date": date,
    "time": time_of_day,
    "clock": clock,
    "fieldset": lambda rng: rng.choice(_FIELD_SETS),
    "fields": several("field", 3, 6),
    "settings": several("setting", 3, 6),
    "services": several("service", 2, 3, " and "),
    "methods": several("method", 2, 4),
    "nouns": several("noun", 5, 12),
    "manynouns": several("noun", 14, 24),
    "nounlines": several("noun", 5, 10, "\n"),
    "fruits": several("fruit", 5, 9),
    "cities": several("city", 3, 9),
    "names": several("first", 4, 9),
    "fewnames": several("first", 2, 4),
    "colors": several("color", 4, 9),
    "items": several("product", 2, 4),
    "topics": several("topic", 2, 3),
    "randoms": numbers(1, 999, 6, 14),
    "n2": number(2, 5),
    "n3": number(3, 9),
    "n10": number(8, 20),
    "n20": number(15, 40),
    "n50": number(20, 90),
    "n100": number(10, 100),
    "n1000": number(100, 2000),
    "n12": number(2, 25),
    "port": number(1024, 9999),
    "year": number(1890, 2025),
    "minutes": number(5, 90),
}
