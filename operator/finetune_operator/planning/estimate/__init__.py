"""What can be said of a job's memory and time from its model's config.json and its number of rows. Pure."""
