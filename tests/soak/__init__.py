"""A daemon under load for minutes: many clients of every kind, and what must be as before afterwards."""
