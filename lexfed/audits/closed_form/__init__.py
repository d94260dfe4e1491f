"""What one upload tells in closed form: rows, spans, norms, sentences, labels, planted phrases."""
