#include "checksum.h"

/* Fletcher's sum over 16 bits, as the stations send it. */
unsigned checksum(const unsigned char *data, size_t length)
{
    unsigned low = 0;
    unsigned high = 0;

    for (size_t i = 0; i < length; i++) {
        low = (low + data[i]) % 255;
        high = (high + low) % 255;
    }
    return high << 8 | low;
}
