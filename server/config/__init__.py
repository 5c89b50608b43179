"""The configuration: every setting of the server, and the upstreams before which it stands."""

from server.config.checks import ConfigError
from server.config.settings import Config, default_data_dir, load
from server.config.upstreams import UpstreamSettings

__all__ = ["Config", "ConfigError", "UpstreamSettings", "default_data_dir", "load"]
