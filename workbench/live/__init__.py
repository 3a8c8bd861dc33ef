"""A run under a user's hands: the engine behind a panel, what it is asked, and what there is to show of it.

No widget is known here: ``workbench.panel`` draws what this package says, and hands on what is pressed.
"""
