package serve

const sysMemfdCreate = 279
