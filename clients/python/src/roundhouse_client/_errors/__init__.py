"""The errors, by what they are about."""
