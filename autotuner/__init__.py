"""vLLM autotuner: finds the fastest safe vLLM configuration, proves it and keeps it."""

__version__ = "0.1.0"
