"""Jobs: what a run is, and the task server that runs one."""

from tinker_actors.scheduler.config import RunConfig
from tinker_actors.scheduler.loading import load_config, parse_config

__all__ = ["RunConfig", "load_config", "parse_config"]
