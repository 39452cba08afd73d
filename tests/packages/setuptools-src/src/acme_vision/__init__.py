"""Acme's models."""
