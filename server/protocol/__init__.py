"""What the API says, pure: no await, no clock, no network, no database."""
