/* A rectangle of a JPEG image by libjpeg-turbo: rows above it are only skipped over, rows below it are not read.

   libjpeg reports errors by a call that must not return, hence setjmp here and not in Cython. Nothing is written
   outside `out`; every row is written by jpeg_read_scanlines into a row buffer of libjpeg's own and copied. */

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

/* jpeg_crop_scanline and jpeg_skip_scanlines are libjpeg-turbo's own, and sound from 2.1 on. */
#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2001000
#error "libjpeg-turbo 2.1 or newer is needed"
#endif

enum { REGION_READ = 0, REGION_DAMAGED = 1, REGION_UNSUPPORTED = 2, REGION_BROKEN = 3 };

/* Smoothed chroma looks one chroma sample, at most four pixels, to each side. */
#define NEIGHBOUR_PIXELS 4

typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf back;
} RegionErrors;

static void region_fail(j_common_ptr image) { longjmp(((RegionErrors *)image->err)->back, 1); }
static void region_be_silent(j_common_ptr image) { (void)image; }
static void region_do_nothing(j_decompress_ptr image) { (void)image; }

/* All bytes are available from the start: a request for more means that the file is truncated. */
static boolean region_no_more(j_decompress_ptr image) { ERREXIT(image, JERR_INPUT_EOF); return FALSE; }

static void region_pass_over(j_decompress_ptr image, long count) {
    struct jpeg_source_mgr *source = image->src;
    if (count <= 0) return;
    if ((size_t)count > source->bytes_in_buffer) ERREXIT(image, JERR_INPUT_EOF);
    source->next_input_byte += count;
    source->bytes_in_buffer -= (size_t)count;
}

/* Whether this is a kind whose region can be decoded alone: one scan, 8 bits, gray or three channels. */
static int region_is_plain(j_decompress_ptr image) {
    if (jpeg_has_multiple_scans(image) || image->arith_code || image->data_precision != 8) return 0;
    return image->jpeg_color_space == JCS_YCbCr || image->jpeg_color_space == JCS_GRAYSCALE ||
           image->jpeg_color_space == JCS_RGB;
}

/* Whether the first marker after a scan's header, except restarts, is the end marker. Rows below a region are not read,
   so only this check finds a second frame or scan, which decoders of whole images reject. */
static int region_is_last_scan(const unsigned char *at, size_t size) {
    const unsigned char *end = at + size;
    while (at < end && (at = (const unsigned char *)memchr(at, 0xFF, (size_t)(end - at)))) {
        while (at < end && *at == 0xFF) at++; /* any number of them may stand before a marker */
        if (at < end && *at && (*at < 0xD0 || *at > 0xD7)) return *at == 0xD9;
    }
    return 0;
}

/* Reads rows [top, top + height) and columns [left, left + width) as [height][width][channels], channels 1, 3 or 4.
   The caller passes the size of the image, which contains the rectangle; another size in the data is REGION_DAMAGED.
   With channels 4 a pixel is RGB and a byte without meaning, as the resize wants it.
   REGION_BROKEN writes what libjpeg says, up to JMSG_LENGTH_MAX bytes, to `problem`. */
static int region_read(const unsigned char *data, size_t size, unsigned image_height, unsigned image_width,
                       unsigned top, unsigned left, unsigned height, unsigned width, int channels,
                       unsigned char *out, char *problem) {
    struct jpeg_decompress_struct image;
    struct jpeg_source_mgr source;
    RegionErrors errors;
    JSAMPROW line;
    JDIMENSION first, columns, row;
    volatile int is_created = 0;

    memset(&source, 0, sizeof source);
    image.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = region_fail;
    errors.base.output_message = region_be_silent;
    if (setjmp(errors.back)) {
        /* Numbers of errors differ between versions of libjpeg, and its first call checks the version. */
        const int is_broken = !is_created || errors.base.msg_code == JERR_OUT_OF_MEMORY;
        if (is_broken) errors.base.format_message((j_common_ptr)&image, problem);
        jpeg_destroy_decompress(&image);
        return is_broken ? REGION_BROKEN : REGION_DAMAGED;
    }
    jpeg_create_decompress(&image);
    is_created = 1;
    source.next_input_byte = data;
    source.bytes_in_buffer = size;
    source.init_source = region_do_nothing;
    source.fill_input_buffer = region_no_more;
    source.skip_input_data = region_pass_over;
    source.resync_to_restart = jpeg_resync_to_restart;
    source.term_source = region_do_nothing;
    image.src = &source;
    jpeg_read_header(&image, TRUE);
    if (image.image_width != image_width || image.image_height != image_height) longjmp(errors.back, 1);
    if (!region_is_plain(&image)) {
        jpeg_destroy_decompress(&image);
        return REGION_UNSUPPORTED;
    }
    if (!region_is_last_scan(source.next_input_byte, source.bytes_in_buffer)) longjmp(errors.back, 1);
    image.out_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 4 ? JCS_EXT_RGBX : JCS_RGB;
    image.dct_method = JDCT_ISLOW;
    jpeg_start_decompress(&image);

    first = left > NEIGHBOUR_PIXELS ? left - NEIGHBOUR_PIXELS : 0;
    columns = image_width - left - width > NEIGHBOUR_PIXELS ? left + width + NEIGHBOUR_PIXELS - first
                                                            : image_width - first;
    if (columns < image_width) jpeg_crop_scanline(&image, &first, &columns);
    if (first > left || first + columns < left + width || image.output_components != channels) longjmp(errors.back, 1);
    /* One byte off: into aligned rows libjpeg-turbo writes past the cache, and reading them back takes a fifth of all. */
    line = 1 + (JSAMPROW)(*image.mem->alloc_large)((j_common_ptr)&image, JPOOL_IMAGE,
                                                   1 + (size_t)image.output_width * (size_t)channels);
    if (top && jpeg_skip_scanlines(&image, top) != top) longjmp(errors.back, 1);
    for (row = 0; row < height; row++) {
        if (jpeg_read_scanlines(&image, &line, 1) != 1) longjmp(errors.back, 1);
        memcpy(out + (size_t)row * width * (size_t)channels, line + (size_t)(left - first) * (size_t)channels,
               (size_t)width * (size_t)channels);
    }
    row = (JDIMENSION)errors.base.num_warnings;
    jpeg_destroy_decompress(&image);
    /* Leave doubtful data to the decoder of the whole image. */
    return row ? REGION_UNSUPPORTED : REGION_READ;
}

/* A number of EXIF, of 2 or 4 bytes. */
static unsigned exif_number(const unsigned char *at, int count, int is_little) {
    unsigned number = 0;
    int i;
    for (i = 0; i < count; i++) number = number << 8 | at[is_little ? count - 1 - i : i];
    return number;
}

/* Whether EXIF, from its TIFF header on, says that the image is upright or does not say how it is turned. */
static int exif_is_upright(const unsigned char *tiff, size_t size) {
    const int is_little = size && tiff[0] == 'I';
    size_t at;
    unsigned entries, turned;
    if (size < 8 || (memcmp(tiff, "II", 2) && memcmp(tiff, "MM", 2))) return 1;
    at = exif_number(tiff + 4, 4, is_little);
    if (at > size || size - at < 2) return 1;
    entries = exif_number(tiff + at, 2, is_little);
    for (at += 2; entries && at <= size && size - at >= 10; entries--, at += 12) {
        if (exif_number(tiff + at, 2, is_little) != 0x0112) continue;
        turned = exif_number(tiff + at + 8, 2, is_little);
        return exif_number(tiff + at + 2, 2, is_little) != 3 || exif_number(tiff + at + 4, 4, is_little) != 1 ||
               turned < 2 || turned > 8;
    }
    return 1;
}

/* A device says nothing of a second scan, and needs memory for the whole image. */
#define MOST_LEFT_PIXELS (1 << 24)

typedef struct {
    unsigned height, width;
    int is_upright; /* by EXIF */
    int is_simple;  /* baseline, gray or YCbCr, all in the first scan: what devices decode, in the same colours */
    size_t scan;    /* where its data begin; may be beyond the end */
} ImageHeader;

/* Whether an image's first bytes and its end show that region_read may be tried on it: standard segments
   up to the first scan, one frame of 8 bits, 1 or 3 components and at least 1 x 1 pixels, and an end marker after
   the scan's header. Stricter than libjpeg, which skips segments of fewer than 2 bytes and, once it has all pixels,
   does not look for the end. The end marker's two bytes cannot occur inside compressed pixels. */
static int image_is_plain(const unsigned char *data, size_t size, ImageHeader *header) {
    size_t at = 2, end, length;
    int has_frame = 0, is_adobe = 0;
    unsigned marker, components = 0;

    header->is_upright = 1;
    header->is_simple = 0;
    if (size < 4 || data[0] != 0xFF || data[1] != 0xD8) return 0;
    for (;;) {
        if (at >= size || data[at] != 0xFF) return 0;
        while (at < size && data[at] == 0xFF) at++; /* any number of them may stand before a marker */
        if (size - at < 3) return 0;
        marker = data[at];
        if (marker == 0xDA) break;
        if (marker < 0x02 || (marker >= 0xD0 && marker <= 0xD9)) return 0; /* no segment behind these */
        length = (size_t)data[at + 1] << 8 | data[at + 2];
        if (length < 2 || length > size - at - 1) return 0;
        if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC) {
            const unsigned char *frame = data + at + 3;
            if (has_frame || length < 8 || frame[0] != 8 || (frame[5] != 1 && frame[5] != 3)) return 0;
            header->height = (unsigned)frame[1] << 8 | frame[2];
            header->width = (unsigned)frame[3] << 8 | frame[4];
            has_frame = header->height && header->width;
            if (!has_frame) return 0;
            components = frame[5];
            header->is_simple = marker == 0xC0 && length == 8 + 3 * (size_t)components &&
                                (components == 1 || (frame[6] == 1 && frame[9] == 2 && frame[12] == 3));
        }
        if (marker == 0xEE && length >= 14 && !memcmp(data + at + 3, "Adobe", 5) && data[at + 14] != 1) is_adobe = 1;
        if (marker == 0xE1 && length >= 8 && !memcmp(data + at + 3, "Exif\0", 6) &&
            !exif_is_upright(data + at + 9, length - 8))
            header->is_upright = 0;
        at += 1 + length;
    }
    if (is_adobe || size - at < 4 || data[at + 3] != components) header->is_simple = 0;
    header->scan = at + 1 + ((size_t)data[at + 1] << 8 | data[at + 2]);
    for (end = size - 2; has_frame && end > at; end--)
        if (data[end] == 0xFF && data[end + 1] == 0xD9) return 1;
    return 0;
}

/* Whether a device decodes this plain image to the same image. */
static int image_is_for_device(const unsigned char *data, size_t size, const ImageHeader *header) {
    return header->is_simple && (uint64_t)header->height * header->width <= MOST_LEFT_PIXELS && header->scan < size &&
           region_is_last_scan(data + header->scan, size - header->scan);
}
