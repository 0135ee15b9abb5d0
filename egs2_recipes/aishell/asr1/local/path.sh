# In place of the tree's own, which demands kenlm three folders up from here: only
# decoding with an n-gram (--use_ngram true) needs it, and takes it from PATH.
