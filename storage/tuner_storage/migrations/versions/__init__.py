"""One file per revision; released ones never change."""
