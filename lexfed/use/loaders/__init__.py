"""Programs that go into an exported folder as `load.py`. They know nothing of lexfed."""
