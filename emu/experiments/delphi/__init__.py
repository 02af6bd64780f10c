"""The experiments of Delphi (MIT, 2016): when each network is best, and how well that is chosen."""
