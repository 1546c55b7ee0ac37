"""Tables in, laws and decisions out: reads run folders and knows no model."""
