package pipe

const sysMemfdCreate = 319
