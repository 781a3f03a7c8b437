#ifndef CHECKSUM_H
#define CHECKSUM_H

#include <stddef.h>

unsigned checksum(const unsigned char *data, size_t length);

#endif
