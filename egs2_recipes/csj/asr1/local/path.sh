# In place of the tree's own, which demands nkf at every start: only the preparation of
# the transcripts in stage 1 needs it, and says so itself where it is missing.
