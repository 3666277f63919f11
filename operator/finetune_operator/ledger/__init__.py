"""The operator's ledger: what each attempt used, outside of any tenant's reach. Pure: records, names and sums."""
