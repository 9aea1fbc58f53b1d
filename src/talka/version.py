"""The version, in the one place that has it."""

VERSION = "0.1.0.dev0"
