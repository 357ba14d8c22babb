"""Tables of tasks: readers of published files, seeded generators, adapters to packages that carry data."""
