"""Policy objectives as pure functions of arrays: no model, no device, no loop."""
