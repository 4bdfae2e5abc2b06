// The page's behaviour: small, and the page works without it.
