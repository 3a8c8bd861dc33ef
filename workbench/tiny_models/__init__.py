"""The interaction models, tiny: their own configuration classes, seeded random weights, a tokenizer. One file each."""
