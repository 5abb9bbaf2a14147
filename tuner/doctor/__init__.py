"""What a search needs of the machines, checked before it starts."""

from tuner.doctor.examination import Doors, Intended, check_token, examine, probe_artifacts

__all__ = ["Doors", "Intended", "check_token", "examine", "probe_artifacts"]
