"""The page in which a translator lives: what is written into it, and its program (page/).

packing     arrays as text
live        a recurrent translator, which the page runs by itself
recorded    the attention of any translator, along given translations
page        all of it in one file
"""
