"""The HTTP surface, in Litestar: parse, hand over, reply. Nothing is decided here."""
