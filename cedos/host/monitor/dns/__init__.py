"""DNS: questions, honest answers, and which resolvers belong to which network."""
