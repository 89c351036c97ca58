"""The configuration: what it holds (`tables`), and how its layers become one (`load`)."""

from guardrun.supervisor.config.load import load_config
from guardrun.supervisor.config.tables import Config, ConfigError
from guardrun.supervisor.config.values import fill_placeholders

__all__ = ["Config", "ConfigError", "fill_placeholders", "load_config"]
