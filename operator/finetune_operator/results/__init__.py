"""What runs have done: their records, what differs between runs, and pages about them."""
