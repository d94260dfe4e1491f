"""What a run is good for once it has ended: labels for new texts, texts of its own, a folder that
other programs open. Nothing here changes a run.
"""
