"""Command lines, presets, studies and figures: the only place with flags and main."""
