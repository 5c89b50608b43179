"""Postgres: what was said, exactly as it came. The only place that imports SQLAlchemy."""
