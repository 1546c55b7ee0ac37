"""Problem sets and their scorers, all behind `base.Task`."""
