"""The version of this package: that of the binary whose API it was made for."""

__version__ = "0.1.0"
