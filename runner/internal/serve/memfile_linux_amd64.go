package serve

const sysMemfdCreate = 319
