"""What the ledger is to record of a job, and the part of its status that shows what is recorded."""
