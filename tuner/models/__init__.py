"""Models on disk: reading, checking, converting and fetching them. Nothing here needs torch."""
