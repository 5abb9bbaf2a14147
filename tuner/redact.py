"""Keeping passwords out of what is printed and stored."""

from __future__ import annotations

import re

_PASSWORD_IN_URL = re.compile(r"(?P<before>[a-zA-Z][\w+.-]*://[^\s:/@]*:)\S+(?=@)")


def hide_passwords(text: str) -> str:
    """The text with the password of every URL in it replaced by ``***``."""
    return _PASSWORD_IN_URL.sub(r"\g<before>***", text)
