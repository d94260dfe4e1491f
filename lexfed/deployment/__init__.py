"""Between organisations: the commands `lexfed server`, `lexfed client` and `lexfed keys`, and the
processes behind them.
"""
