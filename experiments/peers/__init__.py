"""The same translators in PyTorch and CTranslate2, to compare with."""
