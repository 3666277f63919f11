"""Commands on manifests: reading and checking them, planning jobs, and writing new ones."""
