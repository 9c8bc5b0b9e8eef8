"""Interactive page with a trained translator: its data, and its program in page/src.

encode_arrays  arrays as text
live           recurrent translators, which run in the browser
recorded       recorded attention of other translators
bundle         the page as one file
"""
