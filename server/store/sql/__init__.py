"""Every statement of the store, by name, each with the reason for its form.

Every one is a transaction of its own, and takes the tenant first: no statement can be written that forgets it and
still finds a row by its key. Bodies leave as `textsend(...)`, which is their bytes: a text would be decoded by the
driver only to be encoded again. What reads items gives what they are grouped by and then the columns of an item, in one
order.

A row is found by its key in a lateral look-up with a limit. Joined plainly, Postgres hashes all rows of the tenant
while the tables are too young to have statistics (a walk of 240 ms at depth 1,000, not 3).
"""
