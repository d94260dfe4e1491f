"""What everything stands on: errors, files, seeds, parameters, compiled loops, formats, the table
of figures.
"""
