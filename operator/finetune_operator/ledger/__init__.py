"""The operator's ledger: what each attempt used, outside of any tenant's reach. Pure: records, their names and sums,
and what jobs use beyond them."""
