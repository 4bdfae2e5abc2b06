"""Research: a lead with a searcher, a summariser and a fact-checker over a corpus whose sources disagree."""
