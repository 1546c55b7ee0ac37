"""Pure functions from parameters and arrays to arrays: nothing here trains."""
