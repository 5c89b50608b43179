"""The chat dialect: a Responses request as a Chat Completions request, and its replies as those of the Responses API.

What lives here spells what `replay` decided and decides nothing about items (DESIGN 6).
"""
